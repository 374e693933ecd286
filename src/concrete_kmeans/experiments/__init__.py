"""The paper's tables, from data set to printed figure."""
